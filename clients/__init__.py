"""The agents' side over Flower."""
