"""Every interpolant, and what each should be with as many digits as one likes."""

from functools import cache

import mpmath

from flowtempo.interpolants import (
    ChenCosine,
    ChenSigmoid,
    DdpmCosine,
    DdpmLinear,
    DdpmScaledLinear,
    InterpolatedCosine,
    Linear,
    LinearVP,
    Polynomial,
    Shifted,
    ShiftedCosine,
    Trigonometric,
    VarianceExploding,
    VariancePreserving,
    ZeroTerminalSnr,
)

# By the name in `INTERPOLANTS`.
EXAMPLES = {
    "linear": [Linear()],
    "trigonometric": [Trigonometric()],
    "variance_preserving": [
        VariancePreserving(),
        VariancePreserving(0.5, 0.5),
        VariancePreserving(1e-4, 200.0),
    ],
    "linear_vp": [LinearVP()],
    "polynomial": [Polynomial(1), Polynomial(0.5), Polynomial(3)],
    "variance_exploding": [VarianceExploding(), VarianceExploding(0.02, 100)],
    "ddpm_linear": [DdpmLinear(), DdpmLinear(21)],
    "ddpm_scaled_linear": [DdpmScaledLinear()],
    "ddpm_cosine": [DdpmCosine(), DdpmCosine(7)],
    "zero_terminal_snr": [
        ZeroTerminalSnr(DdpmScaledLinear()),
        ZeroTerminalSnr(DdpmLinear(50)),
        ZeroTerminalSnr(DdpmCosine(100)),
    ],
    "shifted_cosine": [ShiftedCosine(64, 64), ShiftedCosine(64, 512), ShiftedCosine(64, 16, -8, 20)],
    "interpolated_cosine": [InterpolatedCosine(32, 256, 512), InterpolatedCosine(32, 32, 64, -10, 10)],
    "chen_cosine": [
        ChenCosine(),
        ChenCosine(0, 1, 3),
        ChenCosine(0.2, 1, 0.5, 0.3),
        ChenCosine(0, 0.5, 2),
        ChenCosine(0.1, 0.9, 0.4, 2),
    ],
    "chen_sigmoid": [ChenSigmoid(), ChenSigmoid(0, 3, 0.7, 0.4), ChenSigmoid(-3, 3, 0.3)],
    "shifted": [
        Shifted(Linear(), 3),
        Shifted(Trigonometric(), 0.3),
        Shifted(VariancePreserving(), 6),
        Shifted(DdpmCosine(100), 1.5),
        Shifted(VarianceExploding(), 2),
        Shifted(Polynomial(2), 2),
    ],
}
PATHS = [path for examples in EXAMPLES.values() for path in examples]


def truth(path, t):
    """alpha, sigma and log_snr at a time, with the digits of mpmath's context."""
    mp, t = mpmath, mpmath.mpf(t)
    match path:
        case Linear():
            alpha, sigma = t, 1 - t
        case Trigonometric():
            alpha, sigma = mp.sin(mp.pi * t / 2), mp.sin(mp.pi * (1 - t) / 2)
        case LinearVP():
            alpha, sigma = t, mp.sqrt(1 - t**2)
        case Polynomial(n):
            alpha, sigma = t ** mp.mpf(n), 1 - t ** mp.mpf(n)
        case VariancePreserving(low, high):
            low, high = mp.mpf(low), mp.mpf(high)
            alpha = mp.exp(-((1 - t) ** 2) * (high - low) / 4 - (1 - t) * low / 2)
            sigma = mp.sqrt(1 - alpha**2)
        case VarianceExploding(low, high):
            alpha, sigma = mp.mpf(1), mp.mpf(high) * (mp.mpf(low) / mp.mpf(high)) ** t
        case ShiftedCosine(noise, image, low, high):
            log_snr = cosine_log_snr(noise, image, low, high, t)
            alpha, sigma = mp.sqrt(1 / (1 + mp.exp(-log_snr))), mp.sqrt(1 / (1 + mp.exp(log_snr)))
        case InterpolatedCosine(noise_low, noise_high, image, low, high):
            log_snr = (1 - t) * cosine_log_snr(noise_low, image, low, high, t)
            log_snr += t * cosine_log_snr(noise_high, image, low, high, t)
            alpha, sigma = mp.sqrt(1 / (1 + mp.exp(-log_snr))), mp.sqrt(1 / (1 + mp.exp(log_snr)))
        case ChenCosine(start, end, tau, scale):
            start, end, tau = mp.mpf(start), mp.mpf(end), mp.mpf(tau)

            def y(u):
                # Exactly 0 at a quarter wave.
                return mp.sin((1 - start - (end - start) * u) * mp.pi / 2) ** (2 * tau)

            gamma = max((y(1 - t) - y(1)) / (y(0) - y(1)), mp.mpf("1e-9"))
            alpha, sigma = scale * mp.sqrt(gamma), mp.sqrt(1 - gamma)
        case ChenSigmoid(start, end, tau, scale):
            start, end, tau = mp.mpf(start), mp.mpf(end), mp.mpf(tau)

            def v(u):
                return 1 / (1 + mp.exp(-(start + (end - start) * u) / tau))

            gamma = max((v(1) - v(1 - t)) / (v(1) - v(0)), mp.mpf("1e-9"))
            alpha, sigma = scale * mp.sqrt(gamma), mp.sqrt(1 - gamma)
        case Shifted(base, shift):
            return truth(base, t / (t + mp.mpf(shift) * (1 - t)))
        case _:
            nodes = node_alphas(path)
            position = (1 - t) * (len(nodes) - 1)
            i = min(int(mp.floor(position)), len(nodes) - 2)
            alpha = nodes[i] + (position - i) * (nodes[i + 1] - nodes[i])
            sigma = mp.sqrt(1 - alpha**2)
    if alpha == 0 or sigma == 0:
        return alpha, sigma, mp.inf if alpha else -mp.inf
    return alpha, sigma, 2 * mp.log(alpha / sigma)


def cosine_log_snr(noise, image, low, high, t):
    mp = mpmath
    shift = 2 * mp.log(mp.mpf(noise) / image)
    start, end = (mp.atan(mp.exp(-(bound - shift) / 2)) for bound in (high, low))
    return -2 * mp.log(mp.tan(start + (1 - t) * (end - start))) + shift


@cache
def node_alphas(path):
    """The root of alpha_bar from the data to the last step."""
    mp = mpmath
    if isinstance(path, ZeroTerminalSnr):
        first, last = node_alphas(path.base)[1], node_alphas(path.base)[-1]
        return [mp.mpf(1)] + [(a - last) * first / (first - last) for a in node_alphas(path.base)[1:]]
    count = path.steps

    def bar(i):
        return mp.cos((mp.mpf(i) / count + mp.mpf("0.008")) / mp.mpf("1.008") * mp.pi / 2) ** 2

    alphas = [mp.mpf(1)]
    for i in range(count):
        share = mp.mpf(i) / (count - 1)
        match path:
            case DdpmLinear():
                beta = (mp.mpf("1e-4") + share * (mp.mpf("0.02") - mp.mpf("1e-4"))) * 1000 / count
            case DdpmScaledLinear():
                low, high = mp.sqrt(mp.mpf("0.00085")), mp.sqrt(mp.mpf("0.012"))
                beta = (low + share * (high - low)) ** 2 * 1000 / count
            case DdpmCosine():
                beta = min(1 - bar(i + 1) / bar(i), mp.mpf("0.999"))
        alphas.append(alphas[-1] * mp.sqrt(1 - beta))
    return alphas


def still_at_noise(path):
    """Whether the path does not move at t = 0, so that its velocity says nothing there."""
    base = path.base if isinstance(path, Shifted) else path
    return isinstance(base, ChenCosine | ChenSigmoid) or (isinstance(base, Polynomial) and base.n > 1)


def infinite_at_data(path):
    """Whether sigma has a vertical tangent at t = 1."""
    base = path.base if isinstance(path, Shifted) else path
    endless = (VariancePreserving, LinearVP, DdpmLinear, DdpmScaledLinear, DdpmCosine, ZeroTerminalSnr)
    return isinstance(base, (*endless, ChenSigmoid)) or (isinstance(base, ChenCosine) and base.start > 0)


def infinite_at_noise(path):
    """Whether alpha has a vertical tangent at t = 0."""
    return isinstance(path, Polynomial) and path.n < 1
