"""The gradients of one batch of the training demo against PyTorch's autograd in float64: test_autograd.py HEED_TRAIN."""
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

CONTEXT, WIDTH, HEADS, KV_HEADS, LAYERS = 64, 128, 4, 2, 3
BOUND = 1e-5  # of the root mean square of a gradient, for its root mean square error


def rms_norm(x, scale):
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * scale


def rotated(x):  # [batch, heads, len, dim]
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def attention(x, p, n):
    def heads(name, count):
        return (x @ p[f"{name}{n}"].reshape(-1, WIDTH).T).unflatten(-1, (count, -1)).transpose(1, 2)

    q, k, v = rotated(heads("wq", HEADS)), rotated(heads("wk", KV_HEADS)), heads("wv", KV_HEADS)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2) @ p[f"wo{n}"].reshape(WIDTH, WIDTH).T


def loss_of(p, inputs, targets):
    x = p["embedding"].reshape(-1, WIDTH)[inputs]
    for n in range(LAYERS):
        x = x + attention(rms_norm(x, p[f"attention_norm{n}"]), p, n)
        hidden = rms_norm(x, p[f"mlp_norm{n}"]) @ p[f"up{n}"].reshape(-1, WIDTH).T
        x = x + F.relu(hidden).square() @ p[f"down{n}"].reshape(WIDTH, -1).T
    logits = rms_norm(x, p["final_norm"]) @ p["to_logits"].reshape(-1, WIDTH).T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], "--gradients", folder], check=True)
        arrays = {path.stem: torch.from_numpy(np.fromfile(path, np.float32)).double() for path in pathlib.Path(folder).glob("*.f32")}
    inputs, targets = (arrays.pop(name).long().reshape(-1, CONTEXT) for name in ("inputs", "targets"))
    theirs = float(arrays.pop("loss"))
    gradients = {name[1:]: arrays.pop(name) for name in list(arrays) if name[1:] in arrays}
    parameters = {name: value.requires_grad_() for name, value in arrays.items()}
    assert len(parameters) == len(gradients) == 3 + 8 * LAYERS, sorted(parameters)
    loss = loss_of(parameters, inputs, targets)
    loss.backward()
    assert abs(theirs - loss.item()) < 1e-5 * loss.item(), (theirs, loss.item())
    worst = 0.0
    for name, parameter in parameters.items():
        error = (gradients[name] - parameter.grad).square().mean().sqrt() / parameter.grad.square().mean().sqrt()
        assert error < BOUND, (name, float(error))
        worst = max(worst, float(error))
    print(f"{len(parameters)} gradients, worst rms error {worst:.1e} of the gradient's rms; loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
