"""Search strategies over one seam: a session that measures within a budget. Nothing here knows of learning."""
