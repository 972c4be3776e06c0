"""Coverage of the 95% intervals for the in-sample estimator's expectation, at the paper's M and K.

500 independent data sets of a known mixture (two clouds on a line through R^16), M = 200 and K = 500 shared
noises. The expectation at this M and K is the mean over all 500, whose own error is 1/22 of one interval's.
"""

from __future__ import annotations

import torch
from ending import QUICK, finish

from flowtempo.variance import in_sample

REPETITIONS, POINTS, NOISES, DIM = (20, 100, 50, 16) if QUICK else (500, 200, 500, 16)
LOG_SNR = torch.tensor([-8.0, -6, -5, -4, -3, -2, -1, 0], dtype=torch.float64)

if __name__ == "__main__":
    means, errors = [], []
    for seed in range(REPETITIONS):
        generator = torch.Generator().manual_seed(seed)
        x = 0.5 * torch.randn(POINTS, DIM, generator=generator)
        x[:, 0] += 2 * torch.randint(0, 2, (POINTS,), generator=generator) - 1
        noises = torch.randn(NOISES, DIM, generator=generator)
        profile = in_sample(x, LOG_SNR, noises, seed=seed)
        means.append(profile.mean)
        errors.append(profile.stderr)
    mean, stderr = torch.stack(means), torch.stack(errors)
    # 15 degrees of freedom of a jackknife over 16 blocks: Student's 97.5% quantile.
    quantile = 2.131
    inside = ((mean - mean.mean(0)).abs() <= quantile * stderr).double().mean(0)
    ratio = stderr.square().mean(0).sqrt() / mean.std(0)
    for row in zip(LOG_SNR.tolist(), inside.tolist(), ratio.tolist(), strict=True):
        print("log-SNR {:+.0f}: {:.1%} inside, root mean square error bar {:.2f} of the spread".format(*row))
    seen = mean.mean(0) > 1e-3 * float(mean.mean(0)[0])
    figures = {
        "coverage_least": float(inside[seen].min()),
        "coverage_mean": float(inside[seen].mean()),
        "coverage_most": float(inside[seen].max()),
    }
    result = {
        "repetitions": REPETITIONS,
        "points": POINTS,
        "noises": NOISES,
        "dim": DIM,
        "log_snr": LOG_SNR.tolist(),
        "coverage": inside.tolist(),
        "stderr_over_spread": ratio.tolist(),
        "mean": mean.mean(0).tolist(),
    }
    finish("coverage", result, figures)
