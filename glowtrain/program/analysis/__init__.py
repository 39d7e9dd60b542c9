"""What can be known of kernels: their structure, what they write whole, what is live."""
