"""Differential privacy: sensitivities, noise, accounting and the ledger.

The sums that the server receives are the only numbers of the agents that leave the federation.
:mod:`~fldb_flower.privacy.sensitivities` bounds the influence of one answer or of one person on
each of them, :mod:`~fldb_flower.privacy.mechanism` adds Gaussian noise in proportion, and
:mod:`~fldb_flower.privacy.accounting` determines how much is needed for all rounds of a run.

Two federations are neighbors if they differ in the contributions of one unit, which are zero in
one of them (zero-out adjacency). With ``privacy.unit=answer`` a unit is one duel, and with
``privacy.unit=person`` all duels of one agent. Who takes part, how many duels each agent has in a
round, the settings and the schedule are public.
"""
