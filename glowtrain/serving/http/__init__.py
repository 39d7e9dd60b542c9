"""The protocol over HTTP: bodies, requests in JSON and bytes, the routes."""
