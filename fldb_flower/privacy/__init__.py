"""Differential privacy: sensitivities, noise, accounting and the plan of a run.

The sums that the server receives are the only numbers of the agents that leave the federation.
:mod:`~fldb_flower.privacy.mechanism` bounds the influence of one answer or of one person on each of
them and adds noise, or with secure sums the server and the helper add it, as integers.
:mod:`~fldb_flower.privacy.accounting` determines how much noise is needed,
:mod:`~fldb_flower.privacy.plan` has the budget of a run, and :mod:`~fldb_flower.privacy.discrete`
draws the noise of devices exactly.

Two federations are neighbors if they differ in the contributions of one unit, which are zero in
one of them (zero-out adjacency). With ``privacy.unit=answer`` a unit is one duel, and with
``privacy.unit=person`` all duels of one agent. Who takes part, how many duels each agent has in a
round, the settings and the schedule are public.
"""
