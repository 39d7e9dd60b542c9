"""Federated learning with Flower (the ``flower`` extra): a trainer and its data as a client.

What goes between clients and server are the model's parameters and running statistics, in the order of their names
(:attr:`Client.names`), which depends on nothing else. Those narrower than f32 travel as f32, so that a server averages
in f32. The optimizer's state, counters and integers stay with the client.
"""

from glowtrain.flower.clients import Client, check_flower, client
from glowtrain.flower.messages import app

__all__ = ["Client", "app", "check_flower", "client"]
