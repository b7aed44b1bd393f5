#pragma once
/// @file
/// A score function of your own, compiled ahead of time into attention kernels: what FlexAttention (Dong et al., arXiv
/// 2412.05496) does by a JIT. Define heed::score_mod() in a file of your own and name the file in CMake:
///
///   heed_add_kernels(my_kernels ... SCORE_MOD document.cpp)   # heed_problem.score_mod = "document"
///
/// Everything here is Halide code that is run once, when the kernels are generated; it needs no other header.

#include <functional>
#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

/// One logit, as int32: sequence, query head, query and key; p is the position of query i among the keys (the
/// contract's p(i)). Kernels evaluate whole blocks: also for keys and queries that a sequence does not have, and do not
/// use what comes out.
struct ScorePlace {
    Halide::Expr b, h, i, j, p;
};

/// A block of logits, as int32, ends included.
struct ScoreBlock {
    Halide::Expr b, first_h, last_h, first_i, last_i, first_j, last_j, first_p, last_p;
};

/// The element type of a buffer.
enum class ScoreElement { i32, f32 };

/// What heed_args.score_buffers points to. An index, int32, outside [0, size) reads the first or the last element. A
/// buffer that ScoreMod::buffers does not declare, or declares as another type, is refused.
class ScoreBuffers {
public:
    /// One of them, as kernels read it.
    struct Buffer {
        /// The bits of an element, as int32.
        std::function<Halide::Expr(const Halide::Expr &)> bits;
        Halide::Expr size;  ///< elements, int32, >= 1
        ScoreElement element;
    };

    ScoreBuffers() = default;
    explicit ScoreBuffers(std::vector<Buffer> buffers) : buffers(std::move(buffers)) {}

    /// Element `index` of buffer number `buffer`, which is declared as i32.
    Halide::Expr i32(int buffer, const Halide::Expr &index) const;
    /// Element `index` of buffer number `buffer`, which is declared as f32.
    Halide::Expr f32(int buffer, const Halide::Expr &index) const;
    /// The elements of buffer number `buffer`: int32, 1 or more.
    Halide::Expr size(int buffer) const;

private:
    const Buffer &declared(const std::string &call, int buffer) const;
    Halide::Expr bits(ScoreElement element, int buffer, const Halide::Expr &index) const;

    std::vector<Buffer> buffers;
};

/// HEED_MAX_SCORE_BUFFERS.
constexpr int max_score_buffers = 4;

/// What score_mod() gives: what the function reads and what it does.
struct ScoreMod {
    /// The element types of heed_args.score_buffers, at most max_score_buffers: flat tensors of any length from 1 on.
    std::vector<ScoreElement> buffers;

    /// Each is optional.
    /// The logit in natural units, after all that the problem's own fields change; float in, float out. -inf and NaN
    /// must not come from numbers: what hides a key is `visible`. exp, log and tanh are computed in vectors, tanh to
    /// 4e-7; on CUDA to 1e-6, and x / y, by a reciprocal, to 3e-7 where the size of y is in 2^-126..2^126. Kernels of
    /// CUDA lack sin, cos, tan, and any Func, Buffer or print of yours.
    std::function<Halide::Expr(const Halide::Expr &logit, const ScorePlace &, const ScoreBuffers &)> logit;

    /// For gradients: the derivative of `logit` by its first argument, float. Without it Heed derives `logit` itself:
    /// arithmetic, min, max, select, casts of floats, abs, exp, log, tanh, sqrt, sin, cos, atan and pow of a number.
    /// The gradients are of q, k, v, bias and sinks; buffers are constants.
    std::function<Halide::Expr(const Halide::Expr &logit, const ScorePlace &, const ScoreBuffers &)> logit_derivative;

    /// Whether query i may see key j: bool; in addition to causal, window, mask and lengths.
    std::function<Halide::Expr(const ScorePlace &, const ScoreBuffers &)> visible;

    /// False only where no logit of the block is visible: bool. Such a block costs this test and nothing else.
    std::function<Halide::Expr(const ScoreBlock &, const ScoreBuffers &)> block_visible;
};

/// Yours to define. Throw std::runtime_error to refuse.
ScoreMod score_mod();

}  // namespace heed
