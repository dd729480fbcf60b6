"""The search space: axes, legality rules, legal configurations, exact masks, and what a configuration implies."""
