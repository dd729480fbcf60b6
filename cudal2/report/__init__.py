"""Figures from measured finals: speed-ups with their losses, plots, README tables. Nothing here measures."""
