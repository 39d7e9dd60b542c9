"""Operators on integers that stand for real numbers, and the conversions to and from them."""
