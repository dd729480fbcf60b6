"""The search space: axes, legality rules, dense validity, exact masks, and what a configuration implies."""
