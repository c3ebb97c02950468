"""Choice of stage boundaries by costs and memory."""
