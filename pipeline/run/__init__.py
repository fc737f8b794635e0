"""What a run must not lose, and who takes part in it; knows no graph and no model."""
