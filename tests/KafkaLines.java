import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends messages that standard input names, each one once; says "done" when the broker has all up to a "flush". */
public class KafkaLines {
    public static void main(String[] args) throws Exception {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", args[0], "acks", "all", "enable.idempotence", "true",
                "reconnect.backoff.max.ms", "200");
        List<Future<?>> sent = new ArrayList<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]));
                KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                        settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split(" ");
                switch (words[0]) {
                    case "create" -> admin.createTopics(
                            List.of(new NewTopic(words[1], Integer.parseInt(words[2]), (short) 1))).all().get();
                    case "send" -> sent.add(producer.send(new ProducerRecord<>(
                            words[1], Integer.parseInt(words[2]), null, HexFormat.of().parseHex(words[3]))));
                    default -> {
                        for (Future<?> each : sent) {
                            each.get();
                        }
                        sent.clear();
                        System.out.println("done");
                    }
                }
            }
        }
    }
}
