"""Deployment of a federation of devices: keys and certificates, and its processes."""
