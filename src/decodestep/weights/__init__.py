"""The forms of a weight that products read: rows of blocks (`PackedWeight`) and two orders of panels; SwiGLU blocks of them."""

from decodestep.weights.device_rows import DeviceRows
from decodestep.weights.feed_forward import FeedForward
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format, PackedWeight
from decodestep.weights.prolog_panels import PanelWeight

__all__ = ["DeviceRows", "FeedForward", "Format", "LinearPanels", "PackedWeight", "PanelWeight"]
