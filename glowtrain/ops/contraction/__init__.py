"""Matrix products, Einsum and linear algebra."""
