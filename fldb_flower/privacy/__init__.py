"""Differential privacy: sensitivities, noise, accounting and the plan of a run.

The sums that the server receives are the only numbers of the agents that leave the federation.
:mod:`~fldb_flower.privacy.sensitivities` bounds the influence of one answer or of one person on
each of them, and :mod:`~fldb_flower.privacy.accounting` determines how much noise is needed for all
rounds of a run, whose budget :mod:`~fldb_flower.privacy.plan` has. The noise is added to the sum
by :mod:`~fldb_flower.privacy.mechanism`, or with secure sums by the server and the helper, as
integers. With devices, :mod:`~fldb_flower.privacy.discrete` draws it exactly.
:mod:`~fldb_flower.privacy.usefulness` has warnings.

Two federations are neighbors if they differ in the contributions of one unit, which are zero in
one of them (zero-out adjacency). With ``privacy.unit=answer`` a unit is one duel, and with
``privacy.unit=person`` all duels of one agent. Who takes part, how many duels each agent has in a
round, the settings and the schedule are public.
"""
