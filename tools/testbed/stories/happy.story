# A deal from its draft to the payout.
a advertiser create
a advertiser submit_offer
a owner accept
a watcher address_ready
a watcher deposit 1 1 TON
a owner submit_draft
a advertiser approve
a owner publish_now
a publisher published
a verifier check 1 passed
a day later
a verifier passed
a show
a payer paid_out
a show
# What the workers and the parties were told.
a published
