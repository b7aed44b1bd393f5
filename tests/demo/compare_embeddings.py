"""Distance between two sets of embeddings, and the bound that the demo keeps."""

import numpy as np

# Components of unit vectors, fp32 against fp64. Each layer ends in a LayerNorm, which brings every component back to
# order 1 with a rounding error of a few units of 2^-24; the mean over the tokens and the scaling to length 1 divide by
# about sqrt(384). 2e-6 leaves room for another order of summation, and is far below any effect of a wrong key.
EMBEDDING_BOUND = 2e-6


def largest_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference of a component; infinite when a value is not finite."""
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {actual.shape} and {expected.shape}")
    difference = np.abs(actual.astype(np.float64) - expected)
    return float(difference.max()) if np.isfinite(difference).all() else float("inf")
