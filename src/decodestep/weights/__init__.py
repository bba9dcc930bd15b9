"""Weight formats: rows of blocks (`PackedWeight`), two kinds of packed panels, device tensors, and feed-forward blocks."""

from decodestep.weights.device_rows import DeviceRows
from decodestep.weights.feed_forward import FeedForward
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format, PackedWeight
from decodestep.weights.panel_weight import PanelWeight

__all__ = ["DeviceRows", "FeedForward", "Format", "LinearPanels", "PackedWeight", "PanelWeight"]
