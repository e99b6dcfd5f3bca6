"""Schemas of the CRDs: markers for the generator, defaults, CEL rules, unserved fields."""
