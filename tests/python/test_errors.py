"""What heed.attention refuses: the exception, and the sentence that names the field, its value and what is allowed."""

import os
import unittest

import numpy as np

from support import Shape, Test, heed, make_qkv

Q, K, V = make_qkv(Shape())  # [2, 5, 4, 32], [2, 37, 2, 32]


class Classes(Test):
    def test_bases(self):
        for kind, bases in ((heed.InvalidArgument, ValueError), (heed.Unsupported, NotImplementedError),
                            (heed.OutOfMemory, MemoryError), (heed.WorkspaceTooSmall, heed.Error),
                            (heed.NoDevice, heed.Error), (heed.Internal, heed.Error)):
            self.assertTrue(issubclass(kind, bases))
            self.assertTrue(issubclass(kind, heed.Error))


class Refusals(Test):
    def refused(self, sentence, q=Q, k=K, v=V, kind=heed.InvalidArgument, **options):
        self.assert_refused(kind, sentence, heed.attention, q, k, v, **options)

    def test_fields(self):
        self.refused("causal is 3; it must be True or False", causal=3)
        self.refused("window_left is -4; it must be -1", window_left=-4)
        self.refused("window_right is 2.5; it must be an integer", window_right=2.5)
        self.refused(f"num_splits is {2**31}; it must be an integer, -2147483648..2147483647", num_splits=2**31)
        self.refused("dropout_seed is -1; it must be an integer", dropout_seed=-1)
        self.refused("softcap is -1; it must be 0", softcap=-1.0)
        self.refused("softcap is True; it must be a number", softcap=True)
        self.refused("scale is inf; it must be finite", scale=float("inf"))
        self.refused("dropout_p is nan; it must be 0..1", dropout_p=float("nan"))
        self.refused("position is 'left'; it must be one of 'top_left', 'bottom_right', 'explicit'", position="left")
        self.refused("q_offsets is missing", position="explicit")
        self.refused("position is 'top_left' with q_offsets", position="top_left", q_offsets=[1, 2])
        self.refused("score_mod is 3; it must be a string", score_mod=3)
        self.refused("score_buffers is given without score_mod", score_buffers=[Q])
        self.refused(r"score_buffers\[1\] has the strides .* it must be packed", score_mod="document",
                     score_buffers=[Q[0, 0, 0], Q[..., 0]])
        self.refused("score_buffers has more than 4 arrays", score_mod="document", score_buffers=[Q] * 5)
        self.refused("unknown keyword: window", kind=TypeError, window=3)

    def test_arrays(self):
        self.refused("q is a list; it must be an array", q=[1.0])
        self.refused("k is a NoneType; it must be an array", k=None)
        self.refused("k has elements of float64; they must be float32, float16", k=K.astype(np.float64))
        self.refused("q has elements of int64", q=Q.astype(np.int64))
        self.refused("q has elements of int8; they must be float32, float16 or bfloat16", q=Q.astype(np.int8))
        self.refused("q has elements of complex64; they must be", q=Q.astype(np.complex64))
        self.refused("k has elements of float16; they must be float32, as q's, or int8", k=K.astype(np.float16), v=V.astype(np.float16))
        self.refused("v has elements of float16; they must be float32", v=V.astype(np.float16))
        self.refused("q has 5 dimensions; it may have 4 at most", q=Q[None])
        self.refused(r"q has the shape \[5, 4, 32\]; it must have 4 dimensions", q=Q[0])
        self.refused(r"k has the shape \[1, 37, 2, 32\]; it must be \[batch, kv_len, .* which is \[2, 37, 2, 32\]",
                     k=K[:1], v=V[:1])
        self.refused(r"v has the shape \[2, 36, 2, 32\]; it must be k's", v=V[:, 1:])
        self.refused(r"v has the shape \[2, 37, 1, 32\]; it must be k's", v=V[:, :, 1:])
        self.refused("num_heads is 3; it must be a positive multiple of num_kv_heads", q=Q[:, :, :3])
        self.refused("the last axis of q has the stride 0", q=np.broadcast_to(np.float32(1), Q.shape))
        self.refused(r"q_layout.stride\[3\] is 2", q=Q[..., ::2], k=K[..., ::2], v=V, kind=heed.Unsupported)
        self.refused(r"k_layout.stride\[1\] is -64", k=K[:, ::-1], v=V, kind=heed.Unsupported)

    def test_scores(self):
        self.refused(r"mask has the shape \[3, 37\]; it must broadcast to \[batch, num_heads, q_len, kv_len\], "
                     r"which is \[2, 4, 5, 37\]",
                     mask=np.ones((3, 37), bool))
        self.refused("bias has elements of float16; they must be float32", bias=np.ones((5, 37), np.float16))
        self.refused("mask has elements of float32, which may mean several things; .* mask_means must be", mask=np.ones((5, 37), np.float32))
        self.refused(r"sink has the shape \[3\]; it must be \[num_heads\], which is \[4\]", sink=np.ones(3, np.float32))
        self.refused("alibi_slopes has elements of float16; they must be float32", alibi_slopes=np.ones(4, np.float16))

    def test_lengths(self):
        self.refused(r"kv_lens has the shape \[3\]; it must be \[batch\], which is \[2\]", kv_lens=[1, 2, 3])
        self.refused("kv_lens has elements of float64; they must be integers", kv_lens=[1.0, 2.0])
        self.refused(f"kv_lens holds 1..{2**31}; elements must be", kv_lens=[1, 2**31])
        self.refused(f"kv_lens holds {-2**31 - 1}..2; elements must be", kv_lens=[-2**31 - 1, 2])
        self.refused(r"kv_lens\[1\] is 38", kv_lens=[3, 38])
        self.refused("kv_lens is missing; it must be given with page_table", page_table=[[0], [1]])
        self.refused("page_table must be an array of integers", page_table=[[0], [1, 2]], kv_lens=[1, 1])
        self.refused("max_q_len is given without cu_seqlens_q", max_q_len=5)
        self.refused("max_kv_len is given with contiguous keys", max_kv_len=5)
        self.refused("cu_seqlens_kv and page_table are both given", cu_seqlens_kv=[0, 1], page_table=[[0]])
        self.refused("cu_seqlens_q is empty", q=Q[0], cu_seqlens_q=[])
        self.refused(r"cu_seqlens_q\[2\] is 4", q=Q[0], cu_seqlens_q=[0, 2, 4])

    def test_scales_of_int8(self):
        codes, scales = K.astype(np.int8), K[..., 0].copy()
        self.refused("k_scale is missing", k=codes, v=codes)
        self.refused("k_scale is given", k_scale=scales, v_scale=scales)
        self.refused("v_scale has the strides .* it must be packed", k=codes, v=codes, k_scale=scales, v_scale=K[..., 0])

    def test_outputs(self):
        self.refused(r"out has the shape \[2, 5, 4, 16\]; it must be q's", out=np.empty((2, 5, 4, 16), np.float32))
        self.refused("out has elements of float16; they must be float32", out=np.empty(Q.shape, np.float16))
        self.refused("out is a ndarray; it must be an array that can be written", out=np.broadcast_to(Q[:1], Q.shape))
        self.refused("out .*overlap", out=Q)
        self.refused(r"lse has the shape \[2, 5, 4\]; it must be \[batch, num_heads, q_len\]",
                     lse=np.empty((2, 5, 4), np.float32))
        self.refused("workspace is given for arrays on the CPU", workspace=np.zeros(9, np.uint8))
        self.refused("device_status is given without metadata on the device", device_status=np.zeros(1, np.int32))
        self.refused("stream is given for arrays on the CPU", stream=0)

    def test_a_refused_call_writes_nothing(self):
        out = np.full_like(Q, 7)
        self.refused("kv_lens", out=out, kv_lens=[3, 99])
        self.assertTrue((out == 7).all())

    def test_a_forced_kernel_is_part_of_the_plan(self):
        expected = heed.attention(Q, K, V)
        os.environ["HEED_FORCE_KERNEL"] = "attention_of_no_table"
        try:
            self.refused("attention_of_no_table", kind=heed.Error)
        finally:
            del os.environ["HEED_FORCE_KERNEL"]
        self.assert_equal(expected, heed.attention(Q, K, V))


if __name__ == "__main__":
    unittest.main()
