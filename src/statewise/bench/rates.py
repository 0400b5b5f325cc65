"""What a device does in a second: bytes that it moves, operations of its matrix products."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Bytes a second that a kernel which only reads gets there; copies are slower.
READ_BANDWIDTH = {"H200": 4.4e12}
# Operations a second of matrix products in 16 bits, two a multiplication and addition, measured on random data.
MATRIX_RATE = {"H200": 7.9e14}
COPIED = {"cuda": 2**31, "cpu": 2**28}  # bytes of what is copied, well above any cache
# Rows and columns of the matrices that are multiplied: few on a CPU, where 16 bits may be far slower than 32.
MULTIPLIED = {"cuda": 8192, "cpu": 256}


@dataclass(frozen=True)
class Rates:
    """Bytes and operations of matrix products a second, and where the numbers come from."""

    bandwidth: float
    bandwidth_from: str
    matrix_rate: float
    matrix_rate_from: str


def rates_of(
    device: torch.device, dtype: torch.dtype, bandwidth: float | None = None, matrix_rate: float | None = None
) -> Rates:
    """Both rates of a device. dtype: of the matrices.  bandwidth, matrix_rate: as given; None: found out."""
    return Rates(
        *(bandwidth_of(device) if bandwidth is None else (bandwidth, "as given")),
        *(matrix_rate_of(device, dtype) if matrix_rate is None else (matrix_rate, "as given")),
    )


def bandwidth_of(device: torch.device) -> tuple[float, str]:
    """Bytes a second, and where the number comes from: known for this GPU, or measured now with a copy."""
    found = _known(device, READ_BANDWIDTH)
    return (
        (found[1], f"read bandwidth of an {found[0]}") if found else (_copy_bandwidth(device), "measured with a copy")
    )


def matrix_rate_of(device: torch.device, dtype: torch.dtype) -> tuple[float, str]:
    """Operations a second, and where the number comes from: known for this GPU in 16 bits, or measured in ``dtype``."""
    found = _known(device, MATRIX_RATE) if dtype.itemsize == 2 else None
    if found:
        return found[1], f"16-bit products of an {found[0]}"
    return _product_rate(device, dtype), f"measured with a product in {str(dtype).removeprefix('torch.')}"


def _known(device: torch.device, known: dict[str, float]) -> tuple[str, float] | None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next(((model, rate) for model, rate in known.items() if model in name), None)


def _copy_bandwidth(device: torch.device) -> float:
    source = torch.ones(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / statistics.median(_seconds(device, lambda: target.copy_(source)))


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """From the fastest of the products: a bound must not be too slow."""
    size, generator = MULTIPLIED[device.type], torch.Generator(device).manual_seed(0)
    rows, weight = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(rows)
    return 2 * size**3 / min(_seconds(device, lambda: torch.mm(rows, weight.T, out=product)))


def _seconds(device: torch.device, call: Callable[[], object], repeats: int = 7) -> list[float]:
    """Of each call but the first, which touches new pages and chooses kernels."""
    times = []
    for _ in range(repeats + 1):
        wait(device)
        begin = time.perf_counter()
        call()
        wait(device)
        times.append(time.perf_counter() - begin)
    return times[1:]


def wait(device: torch.device) -> None:
    """Until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
