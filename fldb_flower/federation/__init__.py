"""The exchange between server and agents, and groups of agents."""
