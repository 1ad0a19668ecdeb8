"""The weight table: every parameter declared once. Pure Python, no JAX."""
