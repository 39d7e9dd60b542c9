"""Devices of this process, and the manager that each device has."""
