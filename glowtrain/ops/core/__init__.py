"""What families of operators are made of; no operator is defined here."""
