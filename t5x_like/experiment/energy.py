"""Energy, emissions and price of a run, from its hours on chips and from stated assumptions.

Patterson et al. 2021, "Carbon Emissions and Large Neural Network Training" (arXiv:2104.10350),
section 2: energy = hours x chips x watts of a chip x PUE; emissions = energy x kg per kWh.
"""

import dataclasses
from collections.abc import Iterator

from t5x_like.config.run_settings import CostSettings

# Mean watts of a chip while it trains, by the `device_kind`. TPU v3: the mean of four models in
# Patterson et al. 2021, table 4, measured with memory, network and the share of the host. v4:
# cloud.google.com/tpu/docs/v4, measured, only the chip. Google publishes no watts of later TPUs.
# NVIDIA: the datasheets' most of a board, without its host.
_WATTS = {
    "TPU v3": 283.0,
    "TPU v4": 170.0,
    "NVIDIA A100-SXM4-40GB": 400.0,
    "NVIDIA A100-SXM4-80GB": 400.0,
    "NVIDIA H100 80GB HBM3": 700.0,
    "NVIDIA H200": 700.0,
    "NVIDIA L4": 72.0,
}
_DEVICES = {"TPU v2": 2, "TPU v3": 2, "TPU7x": 2}  # JAX devices of a chip, where not 1


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What a run takes; None for what no assumption is known for.

    Attributes:
        chip_hours: hours, summed over chips.
        watts: of a chip.
        kwh: energy, with the data center's share.
        kg_co2e: kilograms of CO2 or what warms as much.
        price: in the currency of `cost.price`.
    """

    chip_hours: float
    watts: float | None
    kwh: float | None
    kg_co2e: float | None
    price: float | None


def cost(settings: CostSettings, *, kind: str, device_hours: float) -> Footprint:
    """Return the cost of hours on devices.

    Args:
        settings: the assumptions.
        kind: the devices' `device_kind`.
        device_hours: hours, summed over JAX devices.
    """
    chip_hours = device_hours / _DEVICES.get(kind, 1)
    watts = settings.watts or _WATTS.get(kind)
    kwh = None if watts is None else chip_hours * watts * settings.pue / 1000
    return Footprint(
        chip_hours=chip_hours,
        watts=watts,
        kwh=kwh,
        kg_co2e=None if kwh is None else kwh * settings.kg_per_kwh,
        price=chip_hours * settings.price if settings.price else None,
    )


def lines(footprint: Footprint, settings: CostSettings) -> Iterator[str]:
    """Yield what a cost is, with its assumptions."""
    yield f"{footprint.chip_hours:,.4g} chip hours"
    if footprint.kwh is not None:
        yield (
            f"{footprint.kwh:,.4g} kWh, with {footprint.watts:g} W a chip and a PUE of "
            f"{settings.pue:g}; {footprint.kg_co2e:,.4g} kg of CO2e, with "
            f"{settings.kg_per_kwh:g} kg a kWh"
        )
    if footprint.price is not None:
        price = f"{footprint.price:,.2f}" if footprint.price >= 0.01 else f"{footprint.price:.1g}"
        yield f"a price of {price}, with {settings.price:g} a chip and hour"
