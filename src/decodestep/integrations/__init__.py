"""Bridges to foreign packages, one file each, imported only on use."""
