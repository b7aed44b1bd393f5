// Which phase's kernels a request prefers, and which decode kernels are for its queries and rows: pure functions.
#pragma once

#include <tuple>

#include "runtime/kernel_registry.h"

namespace heed {

// Queries per sequence up to which a decode kernel is preferred: it reads K and V once for all rows of a group and
// splits the keys over threads; prefill kernels compute whole vectors of rows per head. 11 of AVX-512's kernels for
// some head dims where prefill computes in floats too (8 heads of 64, Zen 4, 2 cores, decode and prefill: 8 queries on
// 256 keys take 65 and 92 us, 12 57 and 51, 16 75 and 52), 16 for a group whose keys are no longer in the caches when
// its next head reads them (32 / 8 heads of 128, 16 queries: on 1024 keys 2.1 and 1.5 ms, on 8192 17 and 21). 8 of
// AVX2's from 256 keys on (Zen 3, 2 cores, decode and prefill in f32: 8 queries on 1024 keys, 8 heads of 64, 359 and
// 422 us, 11 queries 544 and 475; 5 on 100 keys 92 and 77; 32 / 8 heads of 128, 8 queries on 4096 keys, 18 and 41 ms).
// Else 4. With matrix tiles, which prefill fills by 32 queries of a head and kernels for large groups by those of all
// heads, 32 of one head, 16 of four, 9 of 32 (Xeon with AMX, 2 cores, decode and prefill in bf16, heads of 128: 32 / 8
// heads, 8 queries on 4096 keys 1.0 and 1.9 ms, 16 1.7 and 1.9, 32 3.2 and 1.9; 32 / 32 heads, 32 queries 6.1 and 10.3
// ms; 32 / 1 heads, 4 queries 0.4 and 1.2 ms, 16 1.5 and 1.1); 8 with tiles of any head dim (16 heads of 256, 16
// queries on 512 keys 0.65 and 0.62 ms). Beside prefill in dot products of bf16 (Zen 5, 2 cores, heads of 128, through
// Python, us): by elements as lanes 8, 11 of one head from 1024 keys on (32 heads, 8 queries on 4096 keys 2450, prefill
// 5540; on 64 50 and 55); by rows as lanes 24, 48 of one head from 1024 keys on, of short groups 48 rows (32 / 8 heads,
// 8 queries on 1024 keys 182 and 485, 24 505 and 638, 32 665 and 651; on 64 keys 12 queries 37 and 48, 32 86 and 64; 32
// heads, 48 queries on 4096 keys 6135 and 6920). Rows of floats as lanes: half a block of them (24 queries with
// AVX-512, 12 with AVX2), of one head from 1024 keys on a block, below 256 keys a quarter, of one head 4 (Zen 5, 2
// cores, heads of 128, through Python, us: 32 / 8 heads, 8 queries on 1024 keys 359, by elements 602, prefill 1018, 24
// 1002 and 1351, 32 1357 and 1353; on 64 keys 12 queries 59 and 78, 16 86 and 80; 8 heads, 48 queries on 4096 keys 1993
// and 2458; AVX2, 32 / 8 heads, 12 queries on 2048 keys 2146 and 2999, 16 3076 and 3006).
int32_t most_decoded_queries(const Kernel &kernel, const KernelRequest &request);

// The most of all requests whose groups have so many heads.
int32_t most_decoded_queries(const Kernel &kernel, int32_t group_size);

// Rows that share the keys of a head, from which on lanes of rows pay (Zen 4, 2 cores, 4096 keys of 128, 8, 16 and 32
// rows by lanes of elements and of rows: f32 0.51, 0.51, 0.50 and 0.69, 0.37, 0.36 ms, bf16 0.43, 0.38, 0.38 and 0.49,
// 0.21, 0.20).
constexpr int32_t least_rows_of_large_groups = 16;

// Fewer rows never get the kernel while another one serves them: of matrix tiles 5, of dot products and of floats three
// quarters as many.
int32_t least_rows(const Kernel &kernel);

// The phase whose kernels are preferred for the head dims of this one.
Phase preferred_phase(const Kernel &kernel, const KernelRequest &request);

// Not those that serve any.
bool has_own_dims(const Kernel &kernel);

// How well a kernel suits a request's queries, heads and keys; the larger the better.
enum class QueryFit : uint8_t {
    others_first,       // decode for more queries than pay, lanes of rows for small groups, whole keys that are smaller
    prefill,            // any number of queries
    tiles_beside_dots,  // matrix tiles where dot products of a few queries pay more
    decode,             // also lanes of rows of any head dims
    whole_or_wide,      // whole keys where one block of rows reads them (in pages whole_key_blocks), rows of own dims
    matrix_tiles,       // of any head dims
    matrix_tiles_of_dims
};
QueryFit suits_queries(const Kernel &kernel, const KernelRequest &request);

// All that these choices make of max_kv_len.
std::tuple<bool, bool, bool, bool> traits_of_lengths(const KernelRequest &request);

}  // namespace heed
