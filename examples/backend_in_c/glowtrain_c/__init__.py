"""A backend of Glowtrain in plain C: the worked example of docs/backends.md."""
