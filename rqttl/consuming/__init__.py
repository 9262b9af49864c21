"""What a consumer keeps and does beside its threads: acks that wait, settling, patience while Redis is away."""
