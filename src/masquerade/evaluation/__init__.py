"""What models are worth and cost: accuracy on own, shifted and corrupted data; the summary."""
