"""Kernel tables: the winner of every shape on one device, as a file other programs can load and trust."""

from cudal2.table.elsewhere import tuned_elsewhere
from cudal2.table.entry import Device, Entry, Header
from cudal2.table.kernel_table import KernelTable

__all__ = ["Device", "Entry", "Header", "KernelTable", "tuned_elsewhere"]
