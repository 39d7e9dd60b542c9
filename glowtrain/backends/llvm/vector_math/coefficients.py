"""Polynomials and constants of the recipes, by format.

The polynomials were fitted for this project: Lawson's iteration towards the minimax polynomial in 70 digits, then the
coefficients were rounded to the format one by one from the lowest, refitting the rest each time. Coefficients go from
low to high. ``error`` comments give log2 of the largest relative error of the function that the polynomial serves.
"""

from __future__ import annotations

from dataclasses import dataclass

Polynomial = tuple[float, ...]


@dataclass(frozen=True)
class Coefficients:
    """What differs between single and double."""

    exp_low: float
    """Below this, exp is 0."""
    exp_high: float
    """Above this, exp overflows (with room for one extra power of two)."""
    ln2: tuple[float, float]
    """ln 2 as a head with trailing zeros, so that small integers times it are exact, and a tail."""
    exp: Polynomial
    """(exp(r) - 1 - r) / r**2 on |r| <= ln2/2."""
    expm1: Polynomial
    """The same with relative error bounded for exp(r) - 1."""
    expm1_low: float
    """Below this, expm1 rounds to -1."""
    expm1_high: float
    """Here exp overflows already, at the largest power of two that exists."""
    sqrt_half: int
    """The bits of sqrt(1/2)."""
    half_pi: tuple[float, float, float]
    """pi/2 as a sum of three numbers."""
    trig_limit: float
    """Largest argument for which the three-part pi/2 is enough."""
    sin: Polynomial
    """(sin(r)/r - 1) / r**2 as a polynomial in r**2 on |r| <= pi/4."""
    cos: Polynomial
    """(cos(r) - 1 + r**2/2) / r**4 as a polynomial in r**2."""
    asin: Polynomial
    """(asin(s)/s - 1) / s**2 in s**2 on |s| <= 1/2."""
    atan: Polynomial
    """(atan(y)/y - 1) / y**2 in y**2 on |y| <= tan(pi/8)."""
    sinh_large: float
    """From here on exp(-x) no longer matters to sinh(x)."""
    asinh_large: float
    """From here on 1 no longer matters beside x**2."""


SINGLE = Coefficients(
    exp_low=-104.0,
    exp_high=90.0,
    ln2=(0.693145751953125, 1.428606765330187e-06),
    exp=(0.4999999403953552, 0.1666652113199234, 0.041668277233839035, 0.008368686772882938, 0.001381982583552599),
    expm1=(
        0.5, 0.1666666716337204, 0.04166647791862488, 0.00833318755030632, 0.0013933738227933645, 0.0001996262144530192,
    ),  # error -31.1
    expm1_low=-18.0,
    expm1_high=88.8,
    sqrt_half=0x3F3504F3,
    half_pi=(1.57079637050628662, -4.37113900018624283e-8, -1.71512449153e-15),
    trig_limit=131072.0,
    sin=(-0.16666653752326965, 0.00833209604024887, -0.0001950562873389572),  # error -27.8
    cos=(0.04166664555668831, -0.0013887309469282627, 2.4432327336398885e-05),  # error -32.6
    asin=(
        0.16666659712791443, 0.0750051885843277, 0.044514358043670654, 0.031828153878450394, 0.014364754781126976,
        0.03761649131774902,
    ),  # error -31.7
    atan=(-0.33333316445350647, 0.1999853402376175, -0.14244554936885834, 0.10600575059652328, -0.06093880906701088),
    sinh_large=10.0,
    asinh_large=2.0**30,
)  # fmt: skip

DOUBLE = Coefficients(
    exp_low=-746.0,
    exp_high=711.0,
    ln2=(0.6931471803691238, 1.9082149292705877e-10),
    exp=(
        0.5, 0.16666666666666677, 0.041666666666666685, 0.008333333333321383, 0.0013888888888872962,
        0.00019841269886833798, 2.4801587350442973e-05, 2.7557243425659427e-06, 2.7557250338340025e-07,
        2.510933247704793e-08, 2.0922329919542566e-09,
    ),  # error -61.7
    expm1=(
        0.5, 0.16666666666666677, 0.041666666666666685, 0.008333333333321383, 0.0013888888888872962,
        0.00019841269886833798, 2.4801587350442973e-05, 2.7557243425659427e-06, 2.7557250338340025e-07,
        2.510933247704793e-08, 2.0922329919542566e-09,
    ),
    expm1_low=-38.0,
    expm1_high=709.9,
    sqrt_half=0x3FE6A09E667F3BCD,
    half_pi=(1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
    trig_limit=2.0**36,
    sin=(
        -0.16666666666666624, 0.008333333333320278, -0.00019841269828006604, 2.7557313043078564e-06,
        -2.5050653570213394e-08, 1.58905983327558e-10,
    ),  # error -57.6
    cos=(
        0.04166666666666658, -0.0013888888888870846, 2.4801587287385846e-05, -2.755731373462025e-07,
        2.0875637912103376e-09, -1.1355166985615567e-11,
    ),  # error -63.5
    asin=(
        0.16666666666666763, 0.07499999999970071, 0.04464285717534659, 0.030381942671189082, 0.022372216046973835,
        0.01735159258864299, 0.013981057270230307, 0.011396948733991507, 0.01079138828665105, 0.0036639046274850916,
        0.0218118566863218, -0.021148139722940194, 0.03272264054573664,
    ),  # error -59.8
    atan=(
        -0.333333333333332, 0.19999999999953877, -0.14285714280230766, 0.11111110785347082, -0.09090897815710751,
        0.07692061295573115, -0.06663116749837603, 0.05847983954496175, -0.0503973861196944, 0.03807572514891335,
        -0.017919549738360283,
    ),  # error -59.5
    sinh_large=22.0,
    asinh_large=2.0**60,
)  # fmt: skip

BY_SCALAR = {"float": SINGLE, "double": DOUBLE}

LOG_SINGLE: Polynomial = (
    0.3333331346511841, -0.25000008940696716, 0.2000207155942917, -0.16667988896369934, 0.14220358431339264,
    -0.12406233698129654, 0.11883548647165298, -0.11670099198818207, 0.06749271601438522,
)  # fmt: skip
"""(log(1+r) - r + r**2/2) / r**3 on [sqrt(1/2) - 1, sqrt(2) - 1]."""

LOG_DOUBLE: Polynomial = (
    0.6666666666666734, 0.3999999999941665, 0.285714287420644, 0.22222198596405376, 0.18183563553062268,
    0.1531406083960465, 0.14795929687931206,
)  # fmt: skip
"""(log((1+s)/(1-s))/s - 2) / s**2 in s**2, |s| <= 3 - 2*sqrt(2)."""

LOG_TAIL_DOUBLE: Polynomial = (
    0.1999999999999999, 0.14285714285721898, 0.11111111108902798, 0.09090909420878411, 0.07692279294661168,
    0.06668129119998507, 0.05837953226473122, 0.05990365281769597,
)  # fmt: skip
"""(atanh(s)/s - 1 - s**2/3) / s**4 in s**2 on the same interval."""

TANH_SINGLE: Polynomial = (
    -0.3333328068256378, 0.13331405818462372, -0.05373651534318924, 0.02062816731631756, -0.0056922961957752705,
)  # fmt: skip
"""(tanh(x)/x - 1) / x**2 in x**2 on |x| < 0.625."""

ERF_SMALL_SINGLE: Polynomial = (
    0.12837915122509003, -0.37612491846084595, 0.1128176674246788, -0.02676430344581604, 0.004989326000213623,
    -0.0005969616068064487,
)  # fmt: skip
"""erf(x)/x - 1 in x**2 on |x| <= 0.927734375; error -25.8."""

ERF_LARGE_SINGLE: Polynomial = (
    -0.1285121589899063, -0.6357259154319763, -0.10525158792734146, 0.022883210331201553, -0.0032127860467880964,
    0.00021371286129578948,
)  # fmt: skip
"""log(erfc(x))/x + 1 in x above; error -28.4."""

ERF_SMALL_DOUBLE: Polynomial = (
    0.12837916709551256, -0.37612638903183593, 0.11283791670950166, -0.026866170644412244, 0.005223977619562973,
    -0.0008548326723624482, 0.00012055322878015198, -1.4925417941789406e-05, 1.6458411848692045e-06,
    -1.6325047785619138e-07, 1.4501910510320962e-08, -1.0801888377092806e-09, 5.04812471710732e-11,
)  # fmt: skip
"""erf(x)/x - 1 in x**2 on |x| <= 1."""

ERF_LARGE_DOUBLE: Polynomial = (
    -5.364941264616636, -4.418160805994412, -0.9237508418239423, -0.016465118137419396, 0.003570756347762666,
    -0.0007323993778312886, 0.00013530933116565852, -2.0706470810780534e-05, 1.952185856952548e-06,
    2.0372722260758922e-07, -1.7317031648159307e-07, 5.7696382412121894e-08, -1.3991018502662291e-08,
    2.6094880469833216e-09, -2.5646418526410366e-10, -7.15685328971882e-11, 3.6547337030838347e-11,
    -4.847776205037419e-12,
)  # fmt: skip
"""log(erfc(x)) in x - 2 on [1, 5.95]."""
