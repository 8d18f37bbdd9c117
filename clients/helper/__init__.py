"""The helper of secure sums, a service that is not run by the operator of the server.

It opens the seeds of reports and returns noisy sums of their masks
(:mod:`fldb_flower.secure.protocol`). It knows neither the algorithm, the numbers nor the devices.
"""
