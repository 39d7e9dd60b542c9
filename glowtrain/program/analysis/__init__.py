"""Analyses of kernels: their structure, what they write whole, what is live, what they cost."""
