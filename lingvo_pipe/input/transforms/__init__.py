"""What is done to images on their way from the data set to the batch."""
