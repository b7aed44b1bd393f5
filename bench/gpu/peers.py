"""What Heed is compared with: PyTorch's attention backends and matrix product, where there is a PyTorch with CUDA."""
import contextlib
import warnings

BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
MATRIX = 8192


def find_torch():
    """The module and "", or None and why not."""
    try:
        import torch
        import torch.nn.attention
    except ImportError as error:
        return None, f"no PyTorch ({error})"
    except OSError as error:  # one of its libraries is missing
        return None, f"PyTorch does not load ({error})"
    if not torch.cuda.is_available():
        return None, f"PyTorch {torch.__version__} sees no CUDA device"
    return torch, ""


class Torch:
    """On a given CUstream, in the device's primary context."""

    def __init__(self, torch, stream):
        self._torch = torch
        self._dtypes = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
        torch.cuda.init()
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = False
        self._stream = torch.cuda.ExternalStream(stream)
        self.version = torch.__version__

    def on_stream(self):
        return self._torch.cuda.stream(self._stream)

    def allocate(self, size):
        tensor = self._torch.empty(size, dtype=self._torch.uint8, device="cuda")
        return tensor.data_ptr(), tensor

    def matmul(self, dtype):
        """A call, and its arithmetic."""
        x, y = (self._torch.randn(MATRIX, MATRIX, device="cuda", dtype=self._dtypes[dtype]) for _ in range(2))
        out = self._torch.empty_like(x)
        return lambda: self._torch.matmul(x, y, out=out), 2 * MATRIX**3

    def _view(self, buffer, dtype, case, heads, head_dim):
        """[batch, heads, len, head_dim] of the packed [batch, len, heads, head_dim]."""
        elements = case.tokens * heads * head_dim
        flat = buffer.tensor[:elements * dtype.itemsize].view(dtype)
        return flat.view(case.batch, case.length, heads, head_dim).transpose(1, 2)

    def attention(self, case, buffers):
        """SDPA on the case's tensors as a call; or a string: why not."""
        if case.lengths:
            return "scaled_dot_product_attention has no packed sequences"
        if case.window_left >= 0:
            return "scaled_dot_product_attention has no window"
        torch, dtype = self._torch, self._dtypes[case.dtype]
        q = self._view(buffers["q"], dtype, case, case.num_heads, case.head_dim)
        k = self._view(buffers["k"], dtype, case, case.num_kv_heads, case.head_dim)
        v = self._view(buffers["v"], dtype, case, case.num_kv_heads, case.head_dim_v)
        options = {"is_causal": case.causal}
        if case.num_kv_heads != case.num_heads:
            options["enable_gqa"] = True
        if case.mask:
            mask = buffers["mask"].tensor[:case.length * case.length].view(torch.bool)
            options["attn_mask"] = mask.view(1, 1, case.length, case.length)
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    def gradients(self, backend, case, buffers):
        """Gradients of SDPA's q, k and v by autograd as a call, after one forward call; or a string: why not."""
        torch, dtype = self._torch, self._dtypes[case.dtype]
        shapes = {"q": (case.num_heads, case.head_dim), "k": (case.num_kv_heads, case.head_dim),
                  "v": (case.num_kv_heads, case.head_dim_v), "dout": (case.num_heads, case.head_dim_v)}
        views = {name: self._view(buffers[name], dtype, case, *shape).detach() for name, shape in shapes.items()}
        inputs = [views[name].requires_grad_() for name in "qkv"]
        try:
            with torch.enable_grad(), self.only(backend):
                out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=case.causal,
                                                                       enable_gqa=case.num_heads != case.num_kv_heads)

            def call():
                return torch.autograd.grad(out, inputs, views["dout"], retain_graph=True)
            call()
            torch.cuda.synchronize()
            return call
        except (RuntimeError, TypeError, AttributeError) as error:
            return str(error).splitlines()[0][:400]

    def gradient_differences(self, call, case, buffers):
        """For dq, dk and dv: name, the largest difference to ours, and the largest magnitude in theirs."""
        shapes = ((case.num_heads, case.head_dim), (case.num_kv_heads, case.head_dim), (case.num_kv_heads, case.head_dim_v))
        for name, theirs, shape in zip(("dq", "dk", "dv"), call(), shapes):
            ours = self._view(buffers[name], self._dtypes[case.dtype], case, *shape)
            heads = range(shape[0])  # in parts: f32 copies of all would take memory
            error = max((ours[:, h].float() - theirs[:, h].float()).abs().max().item() for h in heads)
            yield name, error, max(theirs[:, h].float().abs().max().item() for h in heads)

    def decoding(self, case, buffers):
        """SDPA of one query of each sequence as a call; or a string: why not."""
        if case.page_size or case.kv_dtype != case.dtype:
            return "scaled_dot_product_attention has no " + ("pages" if case.page_size else "int8 keys")
        torch, dtype = self._torch, self._dtypes[case.dtype]

        def view(name, heads, length):
            elements = case.batch * heads * length * case.head_dim
            flat = buffers[name].tensor[:elements * dtype.itemsize].view(dtype)
            return flat.view(case.batch, heads, length, case.head_dim)
        q, k, v = view("q", case.num_heads, 1), *(view(name, case.num_kv_heads, case.kv_len) for name in "kv")
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def only(self, backend):
        """A context in which SDPA runs this backend or fails."""
        return self._torch.nn.attention.sdpa_kernel(getattr(self._torch.nn.attention.SDPBackend, BACKENDS[backend]))

    def why_not(self, backend, call):
        """ "", or why the backend does not serve the call; runs it once."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                with self.only(backend):
                    call()
                self._torch.cuda.synchronize()
                return ""
            except (RuntimeError, TypeError, AttributeError) as error:
                reasons = [str(warning.message).split(" (Triggered")[0] for warning in said]
                return " ".join([str(error).splitlines()[0], *reasons])[:400]

    def difference(self, backend, call, case, buffers):
        """The largest difference to our result, and the largest magnitude in theirs."""
        ours = self._view(buffers["out"], self._dtypes[case.dtype], case, case.num_heads, case.head_dim_v)
        with self.only(backend):
            theirs = call()
        error, size = 0.0, 0.0
        for head in range(case.num_heads):  # in parts: f32 copies of all would take memory
            x, y = ours[:, head].float(), theirs[:, head].float()
            error = max(error, (x - y).abs().max().item())
            size = max(size, y.abs().max().item())
        return error, size


class NoTorch:
    """Memory of the driver; no peers."""
    version = None

    def __init__(self, driver, reason):
        self._driver, self.reason = driver, reason

    def on_stream(self):
        return contextlib.nullcontext()

    def allocate(self, size):
        return self._driver.allocate(size), None

    def decoding(self, _case, _buffers):
        return self.reason
