"""What was compared, in text, HTML and JUnit XML."""
