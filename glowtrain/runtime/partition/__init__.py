"""Networks in parts: cut by what devices hold, support and do in a time."""
