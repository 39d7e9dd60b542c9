"""What a report on a fault needs: versions, the machine, and whether compiled code computes the bits that it should."""
