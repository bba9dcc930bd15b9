"""The forms of a weight that products read: rows of blocks (`PackedWeight`) and two orders of panels."""

from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format, PackedWeight
from decodestep.weights.prolog_panels import PanelWeight

__all__ = ["Format", "LinearPanels", "PackedWeight", "PanelWeight"]
