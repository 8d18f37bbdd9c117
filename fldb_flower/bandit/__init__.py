"""The dueling bandit: preference model, duels, random streams, selection, policies, theory."""
