"""`decodestep.npu_schedule` under the name that it had first."""

from decodestep.npu_schedule import *  # noqa: F403
from decodestep.npu_schedule import __all__ as __all__
