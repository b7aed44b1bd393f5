#!/usr/bin/env python3
"""Bytes that decoding moves, counted on the emulated device: traffic.py LIBHEED [--out FILE] [--tiny].

The emulator counts the sectors of 32 bytes that each access of a warp to global memory touches, as if there were no
cache, in all launches of a call. The least is reading keys and values once. No GPU is needed and none is measured."""
import argparse
import ctypes
import itertools
import json
import pathlib
import sys

import heed_api
import report
from decode_cases import CACHE_BYTES, DecodeCall, DecodeCase
from driver import Driver, NoDevice

SECTOR = 32
ROWS = 32  # query rows of a tile: more heads on one head of keys read it once for each such part


class Counter:
    """Sectors since the last reset, of the emulated device."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")
        self._library.heed_device_sectors.restype = ctypes.c_uint64
        if self._library.heed_device_configure(b"traffic=on") != 0:
            raise NoDevice("the emulated device does not count sectors")

    def count(self, call):
        self._library.heed_device_reset()
        call()
        return [SECTOR * self._library.heed_device_sectors(written) for written in (0, 1)]


def all_cases(tiny):
    types = (("f16", "f16"), ("bf16", "bf16"), ("f16", "i8"))
    for kv_len, (dtype, kv_dtype) in itertools.product((1024, 2048) if tiny else (4096,), types):
        for num_kv_heads, page_size in itertools.product((8, 1), (0, 16, 64)):
            yield DecodeCase(dtype, kv_dtype, 2, 32, num_kv_heads, kv_len, page_size)


def tensors_of(case, driver):
    """Zeros: what is read does not depend on values."""
    cache = case.cache_elements()
    sizes = {name: case.batch * case.num_heads * case.head_dim * 2 for name in ("q", "out")}
    sizes.update({name: cache * CACHE_BYTES[case.kv_dtype] for name in ("k", "v")})
    sizes.update({name: cache // case.head_dim * 4 for name in ("k_scale", "v_scale")})
    tensors = {name: driver.allocate(size) for name, size in sizes.items()}
    for name, size in sizes.items():
        driver.fill(tensors[name], 0, size)
    return tensors


def sector_minimum(case):
    """Bytes of keys and values as warps of one head touch them at least: the scales of a token's heads are side by side,
    so that each head's warps touch the sector that others touch too."""
    scales = 2 * case.batch * case.kv_len * case.num_kv_heads if case.kv_dtype == "i8" else 0
    return case.minimum_bytes() + scales * (min(4 * case.num_kv_heads, SECTOR) - 4)


def measure(case, heed, driver, counter):
    tensors = tensors_of(case, driver)
    try:
        call = DecodeCall(heed, case, tensors, driver, driver.make_stream())
        call()  # loads the kernels
        read, written = counter.count(call)
        kernel = call.kernel
        call.destroy()
    finally:
        for address in tensors.values():
            driver.free(address)
    least = case.minimum_bytes()
    return {"case": case.name, "kernel": kernel, "read_bytes_per_token": read // case.batch,
            "written_bytes_per_token": written // case.batch, "minimum_bytes_per_token": least // case.batch,
            "ratio": round((read + written) / least, 4),
            # What else is read, partial results of splits, is what is written.
            "ratio_of_keys": round((read - written) / sector_minimum(case), 4)}


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=pathlib.Path, help="libheed.so")
    parser.add_argument("--out", type=pathlib.Path, help="the JSON file")
    parser.add_argument("--tiny", action="store_true", help="short caches")
    parser.add_argument("--most", type=float, help="fail where 32 heads of queries or fewer share keys, and a step "
                        "reads more than this times its keys and values, partial results left out")
    options = parser.parse_args(arguments)
    try:
        driver = Driver()
        if not driver.emulated:
            raise NoDevice("the driver is not the emulated device of the tests, which counts")
        counter = Counter()
    except NoDevice as error:
        print(f"traffic.py: {error}", file=sys.stderr)
        return 3
    driver.make_context()
    heed = heed_api.Heed(options.library)
    results, not_run, faults = [], [], []
    for case in all_cases(options.tiny):
        try:
            results.append(measure(case, heed, driver, counter))
            print(json.dumps(results[-1]), flush=True)
            ratio, shared = results[-1]["ratio_of_keys"], case.num_heads // case.num_kv_heads
            if ratio < 1 or (options.most and shared <= ROWS and ratio > options.most):
                faults.append(f"{case.name} reads {ratio} times its keys and values")
        except heed_api.HeedError as error:
            not_run.append({"case": case.name, "reason": str(error).splitlines()[0]})
    facts = {"device": driver.name, "sector_bytes": SECTOR, "gpu": None,
             "what": "sectors of global memory touched by warps in one decoding step, no cache; emulated, no GPU",
             "results": results, "not_run": not_run}
    if options.out:
        options.out.write_text(report.dump(facts), encoding="utf-8")
    for fault in faults or ([] if results else ["no case ran"]):
        print(f"traffic.py: {fault}", file=sys.stderr)
    return 1 if faults or not results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
