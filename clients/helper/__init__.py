"""The helper of secure sums, a service that somebody else than the operator of the server runs.

It opens the seeds of reports and returns sums of their masks with noise
(:mod:`fldb_flower.secure.protocol`). It knows no algorithm, and sees neither numbers nor devices.
"""
