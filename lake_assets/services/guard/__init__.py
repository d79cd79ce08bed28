"""What the guard calls when the supervisor was killed."""
